//go:build cluster

package kube

import (
	"context"

	"tidemill.dev/e2e/kube/images"
)

// built are the files of the images that the cluster needs, by name.
type built map[string]string

func buildImages(ctx context.Context) (built, error) {
	all := built{}
	for _, name := range []string{images.Tidemill, images.Job, images.Intents} {
		file, err := images.Build(ctx, name)
		if err != nil {
			return nil, err
		}
		all[name] = file
	}
	return all, nil
}
