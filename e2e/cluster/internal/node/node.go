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

// Node has the values that the configuration depends on.
type Node struct {
	Name     string     // name of the node, of the cluster and of its users' context
	Address  netip.Addr // address of the node for all clients
	Etc      string     // folder to which the configuration is written
	Programs string     // folder of the binaries
	Cgroup   string     // parent of the pods' cgroups
	GPUs     int        // number of nvidia.com/gpu of the node
	Product  string     // name of the card
	Snapshot string     // containerd's snapshotter
	Nodes    bool       // kwok simulates nodes
}

// The addresses inside a sandbox. Sandboxes do not see each other's addresses.
const (
	podNetwork     = "10.244.0.0/16"
	serviceNetwork = "10.96.0.0/16"
	firstService   = "10.96.0.1"
)

//go:embed templates/*
var templates embed.FS

// Write writes keys and configurations to the folder. It returns the PEM of the authority that
// signed the API server's certificate.
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
	// The kubelet and containerd read whole folders, so these files are in folders.
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

// PodNetwork is the range of the pods' addresses.
func (n Node) PodNetwork() string { return podNetwork }
