//go:build !darwin && !linux

package realservers

func lockFile(string) (release func(), err error) { return func() {}, nil }
