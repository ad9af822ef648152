package node

import (
	"fmt"
	"path/filepath"
	"strconv"

	"tidemill.dev/e2e/cluster/internal/box"
)

const (
	etcdURL    = "http://127.0.0.1:2379"
	containerd = "/run/containerd/containerd.sock"
	devices    = "/var/lib/kubelet/device-plugins/kubelet.sock"
)

// Before lists programs that run once, before any component starts.
func (n Node) Before() []box.Component {
	return []box.Component{{
		Name: "give what leaves the sandbox its address",
		Path: n.debian("usr/sbin/nft"),
		Args: []string{"-f", n.etc("masquerade.nft")},
		Env:  n.Environment(),
	}}
}

// Components are the node's programs, with their conditions.
func (n Node) Components() []box.Component {
	api := []box.Probe{{URL: n.url() + "/readyz"}}
	all := []box.Component{
		n.containerd(),
		n.etcd(),
		n.apiserver(),
		n.kube("kube-controller-manager", api, n.controllers()...),
		n.kube("kube-scheduler", api, "--kubeconfig", n.etc("scheduler.kubeconfig"), "--leader-elect=false"),
		n.kubelet(api),
		n.proxy(api),
		{Name: "coredns", Path: n.program("coredns"), Args: []string{"-conf", n.etc("Corefile")}, After: api},
	}
	if n.GPUs > 0 {
		all = append(all, box.Component{Name: "gpus", Path: n.program("gpus"),
			Args: []string{"--count", strconv.Itoa(n.GPUs)}, After: []box.Probe{{File: devices}}})
	}
	if n.Nodes {
		all = append(all, n.kwok(api))
	}
	return all
}

func (n Node) containerd() box.Component {
	return box.Component{
		Name: "containerd",
		Path: n.debian("usr/bin/containerd"),
		Args: []string{"--config", n.etc("containerd.toml"), "--log-level", "warn"},
		Env:  n.Environment(),
	}
}

// Environment has the paths of the programs and libraries from Debian's packages.
func (n Node) Environment() []string {
	bin := n.debian("usr/bin") + ":" + n.debian("usr/sbin") + ":" + filepath.Join(n.Programs, "bin")
	libraries := n.debian("usr/lib/" + multiarch())
	return []string{
		"PATH=" + bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LD_LIBRARY_PATH=" + libraries + ":" + n.debian("lib/"+multiarch()),
	}
}

// etcd does not wait for the disk, because its data ends with the sandbox anyway.
func (n Node) etcd() box.Component {
	const peer = "http://127.0.0.1:2380"
	return box.Component{Name: "etcd", Path: n.program("etcd"), Args: []string{
		"--name=sandbox", "--data-dir=/var/lib/etcd", "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=sandbox=" + peer,
	}}
}

func (n Node) apiserver() box.Component {
	return n.kube("kube-apiserver", []box.Probe{{URL: etcdURL + "/health"}},
		"--etcd-servers="+etcdURL,
		"--advertise-address="+n.Address.String(),
		"--service-cluster-ip-range="+serviceNetwork,
		"--tls-cert-file="+n.etc("apiserver.crt"), "--tls-private-key-file="+n.etc("apiserver.key"),
		"--client-ca-file="+n.etc("ca.crt"),
		"--kubelet-client-certificate="+n.etc("to-kubelet.crt"), "--kubelet-client-key="+n.etc("to-kubelet.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+n.etc("accounts.key"), "--service-account-signing-key-file="+n.etc("accounts.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
	)
}

// controllers have no request limits, because they do not have to spare other users.
func (n Node) controllers() []string {
	return []string{
		"--kubeconfig", n.etc("controllers.kubeconfig"),
		"--root-ca-file", n.etc("ca.crt"),
		"--service-account-private-key-file", n.etc("accounts.key"),
		"--use-service-account-credentials",
		"--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000",
	}
}

func (n Node) kubelet(api []box.Probe) box.Component {
	args := []string{
		"--config", n.etc("kubelet.yaml"), "--kubeconfig", n.etc("kubelet.kubeconfig"),
		"--hostname-override", n.Name, "--node-ip", n.Address.String(),
	}
	if n.GPUs > 0 {
		args = append(args, "--node-labels", fmt.Sprintf("nvidia.com/gpu.product=%s,nvidia.com/gpu.count=%d", n.Product, n.GPUs))
	}
	return n.kube("kubelet", append(api, box.Probe{File: containerd}), args...)
}

func (n Node) proxy(api []box.Probe) box.Component {
	c := n.kube("kube-proxy", api, "--config", n.etc("proxy.yaml"))
	c.Env = n.Environment()
	return c
}

func (n Node) kwok(api []box.Probe) box.Component {
	return box.Component{Name: "kwok", Path: n.etc("kwok/kwok"), Args: []string{
		"--kubeconfig", n.etc("admin.kubeconfig"),
		"--config", n.etc("kwok/kwok.yaml"),
		"--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
		"--node-ip", n.Address.String(), "--node-lease-duration-seconds=40",
	}, After: api}
}

// kube is one command of the common binary.
func (n Node) kube(name string, after []box.Probe, args ...string) box.Component {
	return box.Component{Name: name, Path: n.program("kube"), Args: append([]string{name}, args...), After: after}
}

func (n Node) etc(name string) string     { return filepath.Join(n.Etc, name) }
func (n Node) program(name string) string { return filepath.Join(n.Programs, "bin", name) }
func (n Node) debian(name string) string  { return filepath.Join(n.Programs, "debian", name) }
