// Package sandbox gives a test a real Kubernetes with a real Knative Serving:
// it runs the program of e2e/cluster as a child and says where things are. The
// child is torn down when the test closes the sandbox, and also when the test
// is killed, because its standard input ends then.
//
// Where KUBECONFIG is set, that cluster is used instead and left as it is.
package sandbox
