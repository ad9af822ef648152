// Package platform opens everything that a process of Tidemill needs. It is the only package that
// distinguishes a laptop from a cluster. On a laptop it starts embedded servers; in a cluster it
// connects to given addresses. All other code is the same in both.
package platform
