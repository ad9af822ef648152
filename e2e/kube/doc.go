// Package kube is the end-to-end test of Tidemill in a cluster. helm installs the chart into a real
// Kubernetes with a real Knative Serving, next to a real Apache Kafka, Redis and S3 server. make
// test-cluster starts all of these and runs the tests; with KUBECONFIG it uses the cluster of that
// file. The tests have the build tag cluster.
package kube
