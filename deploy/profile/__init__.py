"""What the user wants: strict YAML with positions, layers with origins, one typed schema, the catalogue of profiles."""
