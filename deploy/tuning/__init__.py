"""Deciding which settings make a deployment faster: candidates, where they apply, the course of a tune, its verdict."""
