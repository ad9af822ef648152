package recipe

import "path/filepath"

// IngressPort is the node's port for Knative Services from outside.
const IngressPort = 31080

// Domain is the suffix of their public names.
const Domain = "knative.test"

// Base is the manifest for every cluster.
func (c Cache) Base() string { return filepath.Join(string(c), "base.yaml") }

// Kwok are the files of BuildKwok.
func (c Cache) Kwok() []string {
	return []string{filepath.Join(string(c), "kwok"), filepath.Join(string(c), "kwok.yaml")}
}

// Types has Knative's types, which must be applied before its objects.
func (c Cache) Types() string { return filepath.Join(string(c), "types.yaml") }

// Objects has Knative's objects, and the ingress.
func (c Cache) Objects() string { return filepath.Join(string(c), "objects.yaml") }

// Images are the tar files of the recipe's images, in the order in which they are needed. Without
// Knative only the first is needed.
func (c Cache) Images(knative bool) []string {
	wanted := images[:]
	if !knative {
		wanted = wanted[:1]
	}
	var files []string
	for _, p := range wanted {
		files = append(files, filepath.Join(string(c), "images", p.Name+".tar"))
	}
	return files
}
