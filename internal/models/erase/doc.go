// Package erase deletes everything that belongs to a key, in every place where it is stored. It
// writes a receipt that lists the data that is still held, and until when. See DESIGN.md.
package erase
