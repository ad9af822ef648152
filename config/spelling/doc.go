// Package spelling finds the known word that is nearest to a misspelt one, so that an
// error can suggest it.
package spelling
