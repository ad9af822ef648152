//go:build !unix

package transfer

const nonBlocking = 0
