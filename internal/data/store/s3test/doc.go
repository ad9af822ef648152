// Package s3test is an S3 server in memory for tests. It speaks S3 as far as the object store needs it.
// The same suite of the store passes with it and with a server that others wrote: see TestRealS3.
package s3test
