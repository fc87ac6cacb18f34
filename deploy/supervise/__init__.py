"""The long-lived process of one deployment: it spawns or adopts the engine, follows it, and ends it."""
