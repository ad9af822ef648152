// Package recipe says what a cluster is made of, makes it, and keeps it.
package recipe

// program is a Go package and the file that is built from it.
type program struct{ Package, Name string }

// kwok is of a module of its own, in the folder kwok.
var kwok = program{"sigs.k8s.io/kwok/cmd/kwok", "kwok"}

// programs run in the sandbox itself.
var programs = [...]program{
	{"./kube", "kube"},
	{"go.etcd.io/etcd/server/v3", "etcd"},
	{"./coredns", "coredns"},
	{"./gpus", "gpus"},
	{"github.com/containernetworking/plugins/plugins/main/bridge", "bridge"},
	{"github.com/containernetworking/plugins/plugins/main/loopback", "loopback"},
	{"github.com/containernetworking/plugins/plugins/ipam/host-local", "host-local"},
}

// images run in pods. Each is one static binary and nothing else.
var images = [...]program{
	{"./pause", "pause"},
	{"./ingress", "ingress"},
	{"knative.dev/serving/cmd/controller", "controller"},
	{"knative.dev/serving/cmd/webhook", "webhook"},
	{"knative.dev/serving/cmd/autoscaler", "autoscaler"},
	{"knative.dev/serving/cmd/activator", "activator"},
	{"knative.dev/serving/cmd/queue", "queue"},
}

// packages are Debian's: what needs C, and what is ready made. What they need
// in turn and the machine has not comes along.
var packages = [...]string{"containerd", "runc", "nftables"}

// ownFolders are those of this module whose content changes what is built.
var ownFolders = [...]string{"kube", "coredns", "gpus", "pause", "ingress", "internal/recipe", "go.mod", "go.sum"}

// version is what the commands of Kubernetes say they are; without it they
// refuse to work together. A test holds it beside go.mod.
const version = "v1.35.4"

func linkerFlags() string {
	const at = "-X k8s.io/component-base/version."
	return "-s -w " + at + "gitVersion=" + version + " " + at + "gitMajor=1 " + at + "gitMinor=35"
}
