// Package kube is the client of Kubernetes: it launches attempts as Jobs, watches their pods,
// scales scorers, and finds Knative Services. No other package imports client-go and knative.dev.
package kube
