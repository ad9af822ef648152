//go:build !unix

package agent

const nonBlocking = 0
