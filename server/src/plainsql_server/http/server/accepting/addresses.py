"""Whose connection it is: the address that limits count by.

    network_of("2001:db8::17")        # "2001:db8::/64"

A client with IPv6 has a network of 2^64 addresses, and would have as many limits.
"""

import ipaddress

_PREFIX_BITS = 64


def network_of(address: str) -> str:
    """An IPv4 address itself, or the /64 of an IPv6 address. IPv4 in IPv6 counts as IPv4."""
    if ":" not in address:
        return address
    # Without the zone of a link-local address: it is the name of an interface of this machine.
    parsed = ipaddress.IPv6Address(address.partition("%")[0])
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, _PREFIX_BITS), strict=False))
