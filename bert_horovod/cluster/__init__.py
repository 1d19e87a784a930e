"""Hosts, and starting ranks on them."""
