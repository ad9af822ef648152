//go:build cluster

package kube

import (
	"context"

	"tidemill.dev/e2e/kube/images"
)

// imageFiles are the files of the images that the cluster needs, by name.
type imageFiles map[string]string

func buildImages(ctx context.Context) (imageFiles, error) {
	all := imageFiles{}
	for _, name := range []string{images.Tidemill, images.Job, images.Intents} {
		file, err := images.Build(ctx, name)
		if err != nil {
			return nil, err
		}
		all[name] = file
	}
	return all, nil
}
