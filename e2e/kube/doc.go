// Package kube is the end-to-end test of Tidemill in a cluster: the chart, put
// by helm into a real Kubernetes with a real Knative Serving, against a real
// Apache Kafka, Redis and S3 server. make test-cluster runs it, and brings
// all of that up; with KUBECONFIG it takes that cluster. Its tests have the
// build tag cluster.
package kube
