// Package kube is the end-to-end test of Tidemill in a cluster. helm installs the chart into a real
// Kubernetes with a real Knative Serving, next to a real Apache Kafka, Redis and S3 server. make
// test-cluster starts all of that and runs the tests; with KUBECONFIG it uses that cluster. The
// tests have the build tag cluster.
package kube
