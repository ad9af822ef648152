package node

import (
	"bytes"
	"embed"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"text/template"
	"time"
)

// Node is what the configuration depends on.
type Node struct {
	Name     string     // of the node, the cluster and its users' context
	Address  netip.Addr // under which everybody reaches it
	Etc      string     // the folder to write to
	Programs string     // where the binaries are seen
	Cgroup   string     // below which pods' are made
	GPUs     int        // how many nvidia.com/gpu it claims to have
	Product  string     // and of what card
	Snapshot string     // containerd's way to stack layers
	Nodes    bool       // kwok keeps nodes that have none
}

// The addresses inside a sandbox. No two sandboxes see each other's.
const (
	podNetwork     = "10.244.0.0/16"
	serviceNetwork = "10.96.0.0/16"
	firstService   = "10.96.0.1"
)

//go:embed templates/*
var templates embed.FS

// Write writes keys and configurations to the folder, and returns the PEM of
// the authority that signed the API server's certificate.
func (n Node) Write(now time.Time) ([]byte, error) {
	ca, err := newAuthority(now)
	if err != nil {
		return nil, err
	}
	if err := n.writeKeys(ca, now); err != nil {
		return nil, err
	}
	for _, u := range n.users() {
		if err := n.writeKubeconfig(ca, u, now); err != nil {
			return nil, err
		}
	}
	return ca.pem, n.writeTemplates()
}

func (n Node) writeKeys(ca *authority, now time.Time) error {
	addresses := []net.IP{net.IP(n.Address.AsSlice()), net.ParseIP("127.0.0.1"), net.ParseIP(firstService)}
	api, err := ca.server(now, addresses, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost")
	if err != nil {
		return err
	}
	caller, err := ca.client(now, "kube-apiserver", "system:masters")
	if err != nil {
		return err
	}
	signer, err := newKey()
	if err != nil {
		return err
	}
	accounts, err := keyPEM(signer)
	if err != nil {
		return err
	}
	return n.files(map[string][]byte{
		"ca.crt":        ca.pem,
		"apiserver.crt": api.certificate, "apiserver.key": api.key,
		"to-kubelet.crt": caller.certificate, "to-kubelet.key": caller.key,
		"accounts.key": accounts,
	})
}

func (n Node) writeTemplates() error {
	all, err := template.ParseFS(templates, "templates/*")
	if err != nil {
		return fmt.Errorf("read the node's templates: %w", err)
	}
	files := make(map[string][]byte)
	for _, t := range all.Templates() {
		var out bytes.Buffer
		if err := t.Execute(&out, n); err != nil {
			return fmt.Errorf("fill in %s: %w", t.Name(), err)
		}
		files[t.Name()] = out.Bytes()
	}
	// The kubelet and containerd read folders, so these stand in some.
	files["cni/10-pods.conflist"] = files["pods.conflist"]
	return n.files(files)
}

func (n Node) files(files map[string][]byte) error {
	for name, data := range files {
		path := filepath.Join(n.Etc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make a folder for the node's configuration: %w", err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return fmt.Errorf("write the node's configuration: %w", err)
		}
	}
	return nil
}

// PodNetwork is where pods' addresses are from.
func (n Node) PodNetwork() string { return podNetwork }
