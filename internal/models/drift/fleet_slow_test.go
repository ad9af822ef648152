//go:build slow

package drift

import "testing"

// The bar of the issue: 20,000 models, 200 of them shifted.
func TestAFleetOf20000IsWatched(t *testing.T) {
	f := simulate(t, 20000, 200, 1500)
	f.check(t, 20000, 200)
}
