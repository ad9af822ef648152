// Package sandbox gives a test a real Kubernetes with a real Knative Serving. It runs the program
// of e2e/cluster as a child and returns the addresses. The child is torn down when the test closes
// the sandbox. It is also torn down when the test is killed, because the child's standard input
// ends then.
//
// If KUBECONFIG is set, the test uses the cluster of that file, and the package does not change it.
package sandbox
