"""Tables and figures of finished, running and broken runs, from their work directories."""
