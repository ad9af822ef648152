// Package kube is the cluster: it launches attempts as Jobs, watches what becomes
// of them, scales scorers, and finds Knative Services. It alone imports client-go
// and knative.dev.
package kube
