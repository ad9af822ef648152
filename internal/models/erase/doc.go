// Package erase ends keys: it takes away what belongs to one, wherever that
// lies, and leaves a receipt of what is still held and until when. See DESIGN.md.
package erase
