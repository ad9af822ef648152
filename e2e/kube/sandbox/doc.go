// Package sandbox gives a test a real Kubernetes with a real Knative Serving. It runs the program
// of e2e/cluster as a child and returns the addresses. The child is torn down when the test closes
// the sandbox. If the test is killed, the child's input ends, and the child tears it down.
//
// If KUBECONFIG is set, the test uses the cluster of that file, and the package does not change it.
package sandbox
