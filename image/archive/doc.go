// Package archive writes container images as tar files, and reads them back, without a container
// engine. go-containerregistry builds the image itself; this package adds the files of a layer and
// the tar file around the image.
//
// A tar file is both an OCI layout and input of docker load, so containerd, Docker, Podman and
// registry tools can read it. The same image gives the same bytes on every machine and at every
// time: entries are sorted, times are fixed, and owners are numbers. Go's own gzip compresses the
// layers. Another version of Go may give other digests for the same files, but the same diff ids of
// the layers.
package archive
