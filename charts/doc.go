// Package charts tests the chart that installs Tidemill in a cluster: what helm
// makes of it is held against golden files, Kubernetes' own types, Knative's own
// rules, and what the programs in it understand.
package charts
