//go:build linux

package box

import (
	"fmt"
	"hash/fnv"
	"net/netip"
)

// Subnet is the pair of addresses between this machine and a sandbox.
type Subnet struct {
	Host, Node netip.Addr
}

// ParseSubnet reads a /30.
func ParseSubnet(s string) (Subnet, error) {
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return Subnet{}, fmt.Errorf("read the subnet: %w; give one like 10.231.0.0/30", err)
	}
	if !prefix.Addr().Is4() || prefix.Bits() != 30 || prefix.Masked() != prefix {
		return Subnet{}, fmt.Errorf("read the subnet %s: it must be the first address of an IPv4 /30, like 10.231.0.0/30", s)
	}
	host := prefix.Addr().Next()
	return Subnet{Host: host, Node: host.Next()}, nil
}

// freeSubnet returns the first pair in 10.231.0.0/16 without an address of this machine.
func freeSubnet(used []netip.Addr) (Subnet, error) {
	taken := make(map[netip.Prefix]bool, len(used))
	for _, addr := range used {
		taken[netip.PrefixFrom(addr, 30).Masked()] = true
	}
	all := netip.MustParsePrefix("10.231.0.0/16")
	for prefix := netip.PrefixFrom(all.Addr(), 30); all.Contains(prefix.Addr()); prefix = after(prefix) {
		if !taken[prefix] {
			return ParseSubnet(prefix.String())
		}
	}
	return Subnet{}, fmt.Errorf("find a free /30 in %s: all are taken; give one with --subnet", all)
}

func after(prefix netip.Prefix) netip.Prefix {
	a := prefix.Addr().As4()
	n := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	n += 1 << (32 - prefix.Bits())
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), prefix.Bits())
}

// link is the name of the host's end of the veth pair. The kernel allows 15 letters.
func link(name string) string {
	if len(name) <= 12 {
		return "tm-" + name
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	return fmt.Sprintf("tm-%08x", h.Sum32())
}
