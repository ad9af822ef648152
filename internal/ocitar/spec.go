package ocitar

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// The media types of the OCI image specification 1.1.
const (
	typeIndex     = "application/vnd.oci.image.index.v1+json"
	typeManifest  = "application/vnd.oci.image.manifest.v1+json"
	typeConfig    = "application/vnd.oci.image.config.v1+json"
	typeLayer     = "application/vnd.oci.image.layer.v1.tar"
	typeLayerGzip = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type layout struct {
	Version string `json:"imageLayoutVersion"`
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// manifest is an index as well: one has manifests, the other a config and layers.
type manifest struct {
	Schema    int          `json:"schemaVersion"`
	MediaType string       `json:"mediaType"`
	Config    *descriptor  `json:"config,omitempty"`
	Layers    []descriptor `json:"layers,omitempty"`
	Manifests []descriptor `json:"manifests,omitempty"`
}

// docker is what docker load looks for where it does not know OCI's layout.
func (m manifest) docker(name string) dockerEntry {
	e := dockerEntry{Config: blobPath(m.Config.Digest), RepoTags: []string{name}}
	for _, l := range m.Layers {
		e.Layers = append(e.Layers, blobPath(l.Digest))
	}
	return e
}

type dockerEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

type imageConfig struct {
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Created      time.Time `json:"created"`
	Config       Config    `json:"config"`
	RootFS       struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []history `json:"history"`
}

type history struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

// pack gives the layer as it is transferred, and the digest of what it is when
// unpacked.
func (l Layer) pack(plain bool) (packed []byte, mediaType, diffID string, err error) {
	var raw bytes.Buffer
	if err := writeTar(&raw, l.Files); err != nil {
		return nil, "", "", err
	}
	diffID = digestOf(raw.Bytes())
	if plain {
		return raw.Bytes(), typeLayer, diffID, nil
	}
	var small bytes.Buffer
	z := gzip.NewWriter(&small) // its header bears no name and no time
	if _, err := z.Write(raw.Bytes()); err != nil {
		return nil, "", "", err
	}
	if err := z.Close(); err != nil {
		return nil, "", "", err
	}
	return small.Bytes(), typeLayerGzip, diffID, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
