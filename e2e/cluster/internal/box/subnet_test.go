//go:build linux

package box

import (
	"net/netip"
	"testing"
)

func TestParseSubnet(t *testing.T) {
	for given, want := range map[string]string{
		"10.231.0.0/30":   "10.231.0.1 10.231.0.2",
		"10.231.0.252/30": "10.231.0.253 10.231.0.254",
		"10.231.0.1/30":   "",
		"10.231.0.0/24":   "",
		"fd00::/30":       "",
		"here":            "",
	} {
		got, err := ParseSubnet(given)
		if want == "" {
			if err == nil {
				t.Errorf("%s is taken as %v", given, got)
			}
			continue
		}
		if said := got.Host.String() + " " + got.Node.String(); err != nil || said != want {
			t.Errorf("%s is %s, %v; want %s", given, said, err, want)
		}
	}
}

func TestFreeSubnet(t *testing.T) {
	for _, c := range []struct {
		used []string
		want string
	}{
		{nil, "10.231.0.1"},
		{[]string{"10.231.0.1", "192.0.2.7"}, "10.231.0.5"},
		{[]string{"10.231.0.5"}, "10.231.0.1"},
		{[]string{"10.231.0.6", "10.231.0.2"}, "10.231.0.9"},
	} {
		var used []netip.Addr
		for _, addr := range c.used {
			used = append(used, netip.MustParseAddr(addr))
		}
		got, err := freeSubnet(used)
		if err != nil || got.Host.String() != c.want {
			t.Errorf("beside %v it takes %v, %v; want %s", c.used, got.Host, err, c.want)
		}
	}
}

func TestFreeSubnetOfNone(t *testing.T) {
	var used []netip.Addr
	for a := range 256 {
		for b := 0; b < 256; b += 4 {
			used = append(used, netip.AddrFrom4([4]byte{10, 231, byte(a), byte(b)}))
		}
	}
	if got, err := freeSubnet(used); err == nil {
		t.Errorf("with all taken it takes %v", got)
	}
}

func TestLink(t *testing.T) {
	long, longer := link("a-name-of-many-letters"), link("a-name-of-many-letters-2")
	if long == longer || len(long) > 15 || len(longer) > 15 {
		t.Errorf("long names become %s and %s", long, longer)
	}
	if got := link("twelve-chars"); got != "tm-twelve-chars" {
		t.Errorf("a name that fits becomes %s", got)
	}
	if got := peer(link("e2e")); got != "tp-e2e" {
		t.Errorf("the other end is %s", got)
	}
}
