//go:build slow

package charts_test

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// endpoint is a pod, or an address outside the cluster.
type endpoint struct {
	namespace string // empty for an address
	labels    map[string]string
	address   string
}

// call is a connection from a pod of a run, or to one.
type call struct {
	from, to endpoint
	port     int    // number of the port
	name     string // name of the port in the pod that is called
}

// allowed reports whether the policies allow a call: those of the caller its way out, and those of
// the called pod the way in. It follows the reference of NetworkPolicies.
func allowed(t *testing.T, policies []*networkingv1.NetworkPolicy, c call) bool {
	t.Helper()
	way := func(of, other endpoint, kind networkingv1.PolicyType) bool {
		closed := false
		for _, p := range policies {
			if of.namespace != p.Namespace || !slices.Contains(p.Spec.PolicyTypes, kind) || !selects(t, &p.Spec.PodSelector, of.labels) {
				continue
			}
			closed = true
			if kind == networkingv1.PolicyTypeEgress {
				for _, r := range p.Spec.Egress {
					if hasPeer(t, p.Namespace, r.To, other) && hasPort(r.Ports, c) {
						return true
					}
				}
				continue
			}
			for _, r := range p.Spec.Ingress {
				if hasPeer(t, p.Namespace, r.From, other) && hasPort(r.Ports, c) {
					return true
				}
			}
		}
		return !closed
	}
	return way(c.from, c.to, networkingv1.PolicyTypeEgress) && way(c.to, c.from, networkingv1.PolicyTypeIngress)
}

func selects(t *testing.T, s *metav1.LabelSelector, of map[string]string) bool {
	t.Helper()
	chosen, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return chosen.Matches(labels.Set(of))
}

func hasPeer(t *testing.T, namespace string, peers []networkingv1.NetworkPolicyPeer, other endpoint) bool {
	t.Helper()
	return len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		if p.IPBlock != nil {
			return other.namespace == "" && inBlock(t, p.IPBlock, other.address)
		}
		here := other.namespace == namespace
		if p.NamespaceSelector != nil {
			here = other.namespace != "" && selects(t, p.NamespaceSelector, map[string]string{"kubernetes.io/metadata.name": other.namespace})
		}
		return here && (p.PodSelector == nil || selects(t, p.PodSelector, other.labels))
	})
}

func inBlock(t *testing.T, b *networkingv1.IPBlock, address string) bool {
	t.Helper()
	in := func(cidr string) bool {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			t.Fatal(err)
		}
		return prefix.Contains(netip.MustParseAddr(address))
	}
	return in(b.CIDR) && !slices.ContainsFunc(b.Except, in)
}

func hasPort(ports []networkingv1.NetworkPolicyPort, c call) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		return (p.Protocol == nil || *p.Protocol == corev1.ProtocolTCP) && (p.Port == nil || p.Port.IntValue() == c.port || p.Port.StrVal != "" && p.Port.StrVal == c.name)
	})
}

// A run's code reaches no other run, no metadata of a cloud and no DNS but the cluster's, and
// still does what a run needs.
func TestWhatRunsReach(t *testing.T) {
	for name, c := range map[string]struct{ install, namespace, instance string }{
		"minimal": {"tidemill", "ml", "tidemill"}, "everything": {"prod", "ml-runs", "tidemill"},
	} {
		policies := objectsOf[*networkingv1.NetworkPolicy](rendered(t, name))
		run := func(attempt string) endpoint {
			return endpoint{namespace: c.namespace, labels: map[string]string{"tidemill.dev/install": c.install, "tidemill.dev/run": attempt, "tidemill.dev/attempt": attempt + "-1"}}
		}
		part := func(component string) endpoint {
			return endpoint{namespace: "ml", labels: map[string]string{"app.kubernetes.io/name": "tidemill", "app.kubernetes.io/instance": c.instance, "app.kubernetes.io/component": component}}
		}
		outside := func(address string) endpoint { return endpoint{address: address} }
		dns := endpoint{namespace: "kube-system", labels: map[string]string{"k8s-app": "kube-dns"}}
		internet := name == "minimal"
		for what, one := range map[string]struct {
			call
			want bool
		}{
			"another run":                 {call{from: run("a"), to: run("b"), port: 29500}, false},
			"a run from the gateway":      {call{from: part("gateway"), to: run("a"), port: 29500}, false},
			"the metadata of AWS":         {call{from: run("a"), to: outside("169.254.169.254"), port: 80}, false},
			"the metadata of ECS":         {call{from: run("a"), to: outside("169.254.170.2"), port: 80}, false},
			"the metadata of AWS by IPv6": {call{from: run("a"), to: outside("fd00:ec2::254"), port: 80}, false},
			"Azure's WireServer":          {call{from: run("a"), to: outside("168.63.129.16"), port: 80}, false},
			"Azure's WireServer, DNS":     {call{from: run("a"), to: outside("168.63.129.16"), port: 53}, false},
			"the metadata of Alibaba":     {call{from: run("a"), to: outside("100.100.100.200"), port: 80}, false},
			"the metadata of Oracle":      {call{from: run("a"), to: outside("192.0.0.192"), port: 80}, false},
			"a pod of the cluster":        {call{from: run("a"), to: endpoint{namespace: "kafka"}, port: 9092}, false},
			"its DNS on another port":     {call{from: run("a"), to: dns, port: 9153}, false},
			"another pod's port 53":       {call{from: run("a"), to: endpoint{namespace: "kafka"}, port: 53}, false},
			"a DNS outside":               {call{from: run("a"), to: outside("203.0.113.53"), port: 53}, internet},
			"the cluster's addresses":     {call{from: run("a"), to: outside("10.96.0.1"), port: 53}, false},
			"the dispatcher":              {call{from: run("a"), to: part("dispatcher"), port: 8080, name: "http"}, false},
			"the gateway":                 {call{from: run("a"), to: part("gateway"), port: 8080, name: "http"}, true},
			"the cluster's DNS":           {call{from: run("a"), to: dns, port: 53}, true},
			"a node's DNS":                {call{from: run("a"), to: outside("169.254.20.10"), port: 53}, true},
			"the internet":                {call{from: run("a"), to: outside("203.0.113.7"), port: 443}, internet},
		} {
			if got := allowed(t, policies, one.call); got != one.want {
				t.Errorf("%s: a run reaches %s: %t", name, what, got)
			}
		}
	}
}

// A list of an install that forgets the addresses of metadata does not open them.
func TestMetadataIsAlwaysExcepted(t *testing.T) {
	text := render(t, "testdata/minimal.values.yaml", "--set", "networkPolicy.runs.exceptCIDRs={10.0.0.0/8}")
	policies := objectsOf[*networkingv1.NetworkPolicy](objects(t, "minimal", text))
	run := endpoint{namespace: "ml", labels: map[string]string{"tidemill.dev/install": "tidemill", "tidemill.dev/run": "a"}}
	for _, address := range []string{"169.254.169.254", "169.254.170.23", "168.63.129.16", "100.100.100.200", "192.0.0.192"} {
		if allowed(t, policies, call{from: run, to: endpoint{address: address}, port: 80}) {
			t.Errorf("a run reaches %s", address)
		}
	}
}
