"""The agent in the guest: keeper, server (and, later, renderer) processes.  Imports ptymux; ptymux never imports this."""
