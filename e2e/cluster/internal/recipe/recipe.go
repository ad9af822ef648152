// Package recipe defines the parts of a cluster, builds them, and keeps the result.
package recipe

// program is a Go package and the file that is built from it.
type program struct{ Package, Name string }

// kwok has its own module, in the folder kwok.
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

// images run in pods. Each contains only one static binary.
var images = [...]program{
	{"./pause", "pause"},
	{"./ingress", "ingress"},
	{"knative.dev/serving/cmd/controller", "controller"},
	{"knative.dev/serving/cmd/webhook", "webhook"},
	{"knative.dev/serving/cmd/autoscaler", "autoscaler"},
	{"knative.dev/serving/cmd/activator", "activator"},
	{"knative.dev/serving/cmd/queue", "queue"},
}

// packages are Debian packages for programs that need C or need no build. Their missing
// dependencies are added.
var packages = [...]string{"containerd", "runc", "nftables"}

// ownFolders are the folders of this module that the build depends on.
var ownFolders = [...]string{"kube", "coredns", "gpus", "pause", "ingress", "internal/recipe", "go.mod", "go.sum"}

// version is the version that Kubernetes' commands report. Without it they refuse to work together.
// A test compares it with go.mod.
const version = "v1.35.4"

func linkerFlags() string {
	const at = "-X k8s.io/component-base/version."
	return "-s -w " + at + "gitVersion=" + version + " " + at + "gitMajor=1 " + at + "gitMinor=35"
}
