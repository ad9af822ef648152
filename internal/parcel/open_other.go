//go:build !unix

package parcel

const nonBlocking = 0
