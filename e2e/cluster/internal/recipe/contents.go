package recipe

import "path/filepath"

// IngressPort is the node's port at which Knative Services are reached from
// outside.
const IngressPort = 31080

// Domain is what their public names end in.
const Domain = "knative.test"

// Base is what is applied to every cluster.
func (c Cache) Base() string { return filepath.Join(string(c), "base.yaml") }

// Kwok are the files of BuildKwok.
func (c Cache) Kwok() []string {
	return []string{filepath.Join(string(c), "kwok"), filepath.Join(string(c), "kwok.yaml")}
}

// Types are Knative's, to be applied before its objects.
func (c Cache) Types() string { return filepath.Join(string(c), "types.yaml") }

// Objects are Knative's, and the ingress.
func (c Cache) Objects() string { return filepath.Join(string(c), "objects.yaml") }

// Images are the tars of the recipe's images, in the order they are needed in;
// without Knative the first is enough.
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
