//go:build !linux

package main

// hide does nothing where there are no containers.
func hide() error { return nil }
