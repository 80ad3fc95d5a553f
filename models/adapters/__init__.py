"""Models and layers of other libraries, none of which is needed to import this package."""
