// Package runs is the wing of packages that start a training. The scheduler turns accepted requests
// into attempts; local and kube launch an attempt as a child process or as a Kubernetes Job; the
// agent runs inside the attempt. Rendezvous and warmpods help several workers meet and let idle
// pods take the next run.
package runs
