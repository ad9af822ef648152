// Package charts tests the chart that installs Tidemill in a cluster. It compares helm's
// output with golden files, and checks it against the types of Kubernetes, the rules of
// Knative, and the flags of Tidemill's programs.
package charts
