package node

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func written(t *testing.T, now time.Time) (Node, []byte) {
	t.Helper()
	n := Node{Name: "mine", Address: netip.MustParseAddr("10.231.0.2"), Etc: t.TempDir(), Programs: "/programs", Cgroup: "tidemill-mine", GPUs: 2, Product: "A-CARD", Snapshot: "overlayfs"}
	ca, err := n.Write(now)
	if err != nil {
		t.Fatal(err)
	}
	return n, ca
}

// TestCertificates verifies every certificate with the authority.
func TestCertificates(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	n, ca := written(t, now)
	trust := x509.NewCertPool()
	if !trust.AppendCertsFromPEM(ca) {
		t.Fatal("the authority's certificate cannot be read")
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(n.Etc, "apiserver.crt"), filepath.Join(n.Etc, "apiserver.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"10.231.0.2", "127.0.0.1", "10.96.0.1", "kubernetes.default.svc"} {
		options := x509.VerifyOptions{Roots: trust, CurrentTime: now.Add(24 * time.Hour), DNSName: name}
		if _, err := pair.Leaf.Verify(options); err != nil {
			t.Errorf("the API server's certificate for %s: %v", name, err)
		}
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: trust, CurrentTime: now, DNSName: "elsewhere"}); err == nil {
		t.Error("it counts for any name")
	}
}

func TestKubeconfigs(t *testing.T) {
	now := time.Now()
	n, ca := written(t, now)
	trust := x509.NewCertPool()
	trust.AppendCertsFromPEM(ca)
	for file, want := range map[string]string{
		"admin": "tidemill-admin system:masters", "kubelet": "system:node:mine system:nodes",
		"scheduler": "system:kube-scheduler ", "controllers": "system:kube-controller-manager ",
		"proxy": "system:kube-proxy ", "coredns": "system:coredns ",
	} {
		leaf := clientOf(t, filepath.Join(n.Etc, file+".kubeconfig"))
		if got := leaf.Subject.CommonName + " " + strings.Join(leaf.Subject.Organization, " "); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
		usage := x509.VerifyOptions{Roots: trust, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		if _, err := leaf.Verify(usage); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func clientOf(t *testing.T, file string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Clusters []struct{ Cluster struct{ Server string } }
		Users    []struct {
			User struct {
				Certificate string `json:"client-certificate-data"`
			}
		}
	}
	if err := json.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	if got := config.Clusters[0].Cluster.Server; got != "https://10.231.0.2:6443" {
		t.Errorf("%s leads to %s", file, got)
	}
	text, err := base64.StdEncoding.DecodeString(config.Users[0].User.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

func TestTemplates(t *testing.T) {
	n, _ := written(t, time.Now())
	for file, want := range map[string]string{
		"kubelet.yaml":         "cgroupRoot: /tidemill-mine",
		"proxy.yaml":           "hostnameOverride: mine",
		"containerd.toml":      `BinaryName = "/programs/debian/usr/sbin/runc"`,
		"cni/10-pods.conflist": `"subnet": "10.244.0.0/16"`,
		"Corefile":             "bind 10.231.0.2",
		"resolv.conf":          "nameserver 10.231.0.2",
		"masquerade.nft":       "ip saddr 10.244.0.0/16 masquerade",
	} {
		data, err := os.ReadFile(filepath.Join(n.Etc, file))
		if err != nil || !strings.Contains(string(data), want) || strings.Contains(string(data), "<no value>") {
			t.Errorf("%s has no %q, %v:\n%s", file, want, err, data)
		}
		if strings.HasSuffix(file, "conflist") && !json.Valid(data) {
			t.Errorf("%s is no JSON", file)
		}
	}
}

// TestComponents checks that gpus and kwok run only if they are requested.
func TestComponents(t *testing.T) {
	for _, c := range []struct {
		node Node
		want string
	}{
		{Node{}, "containerd etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy coredns"},
		{Node{GPUs: 1}, "containerd etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy coredns gpus"},
		{Node{Nodes: true}, "containerd etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy coredns kwok"},
	} {
		var names []string
		labelled := false
		for _, component := range c.node.Components() {
			names = append(names, component.Name)
			labelled = labelled || strings.Contains(strings.Join(component.Args, " "), "nvidia.com/gpu.product=")
		}
		if got := strings.Join(names, " "); got != c.want || labelled != (c.node.GPUs > 0) {
			t.Errorf("%+v runs %s, labelled %t", c.node, got, labelled)
		}
	}
}
