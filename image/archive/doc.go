// Package archive writes container images as tar files, and reads them back,
// without a container engine. The image itself is built by
// go-containerregistry; this package adds the files of a layer and the tar file
// around the image.
//
// A tar file is both an OCI layout and input of docker load, so containerd,
// Docker, Podman and the tools of registries read it. The same image gives the
// same bytes on every machine and at every time: entries are sorted, times are
// fixed, and owners are numbers. Layers are compressed by Go's own gzip, so
// another version of Go may give other digests for the same files; the diff ids
// of the layers stay.
package archive
