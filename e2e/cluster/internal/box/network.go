//go:build linux

package box

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// takeSubnet parses the requested subnet, or takes a free one. Its address is added to this machine
// at once, so that no other process takes it.
func (b *Box) takeSubnet(asked string) (subnet Subnet, err error) {
	held, err := lock(".subnets", true)
	if err != nil {
		return Subnet{}, fmt.Errorf("wait for others that choose a subnet: %w", err)
	}
	defer func() { err = errors.Join(err, unlock(held)) }()
	if subnet, err = chooseSubnet(asked); err != nil {
		return Subnet{}, err
	}
	name := link(b.Name)
	return subnet, errors.Join(
		ip("link", "add", name, "type", "veth", "peer", "name", peer(name)),
		ip("address", "add", subnet.Host.String()+"/30", "dev", name),
		ip("link", "set", name, "up"),
	)
}

// peer is the sandbox's end of the pair while it is still on this machine.
func peer(link string) string { return "tp" + strings.TrimPrefix(link, "tm") }

func chooseSubnet(asked string) (Subnet, error) {
	if asked != "" {
		return ParseSubnet(asked)
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return Subnet{}, fmt.Errorf("list this machine's addresses: %w", err)
	}
	var used []netip.Addr
	for _, address := range addresses {
		if prefix, err := netip.ParsePrefix(address.String()); err == nil && prefix.Addr().Is4() {
			used = append(used, prefix.Addr())
		}
	}
	return freeSubnet(used)
}

// connect moves the sandbox's end into the sandbox, as eth0.
func (b *Box) connect(pid int) error {
	return ip("link", "set", peer(link(b.Name)), "netns", strconv.Itoa(pid), "name", "eth0")
}

// disconnect removes the pair, wherever the other end is.
func disconnect(name string) error {
	if _, err := net.InterfaceByName(link(name)); err != nil {
		return nil // it went with the sandbox
	}
	err := ip("link", "delete", link(name))
	if _, still := net.InterfaceByName(link(name)); still != nil {
		return nil
	}
	return err
}

// join sets up the network from inside.
func (s Subnet) join() error {
	return errors.Join(
		ip("link", "set", "lo", "up"),
		ip("address", "add", s.Node.String()+"/30", "dev", "eth0"),
		ip("link", "set", "eth0", "up"),
		ip("route", "add", "default", "via", s.Host.String()),
	)
}

func ip(args ...string) error {
	said, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(said))
	}
	return nil
}

// Rights reports what this machine lacks for a sandbox, before anything is started. It starts this
// program again with TryArgument, so only a program that handles that argument may call it.
func Rights() error {
	var errs []error
	if syscall.Geteuid() != 0 {
		errs = append(errs, errors.New("you are not root"))
	}
	for _, name := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(name); err != nil {
			errs = append(errs, fmt.Errorf("there is no %s; install iproute2 and util-linux", name))
		}
	}
	if err := exists("/dev/kmsg"); err != nil {
		errs = append(errs, fmt.Errorf("the kubelet reads the kernel's log: %w", err))
	}
	if _, err := findHierarchies(); err != nil {
		errs = append(errs, err)
	}
	if errs == nil {
		errs = append(errs, tryNamespaces())
	}
	return errors.Join(errs...)
}

func tryNamespaces() error {
	cmd := exec.Command("/proc/self/exe", TryArgument)
	cmd.SysProcAttr = namespaces()
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make namespaces and mount in them: %w: %s; in a container this needs --privileged", err, bytes.TrimSpace(said))
	}
	return nil
}
