//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "cluster: a sandbox is made of Linux's namespaces and cgroups; set KUBECONFIG to use a cluster that you have")
	os.Exit(3)
}
