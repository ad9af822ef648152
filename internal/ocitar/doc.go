// Package ocitar writes container images as tar files, and reads them back,
// without a container engine. It does no I/O of its own but through the writer
// and the reader that it is given.
//
// A file is both an OCI layout and what docker load takes, so that containerd,
// Docker, Podman and the tools of registries all read it. The same image is the
// same bytes, whoever writes it and when: entries are sorted, times are fixed,
// owners are numbers. What compresses is Go's own gzip, so another version of Go
// may give other digests for the same files; the layers' diff ids stay.
package ocitar
