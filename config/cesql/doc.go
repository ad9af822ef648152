// Package cesql parses the CloudEvents SQL Expression Language, version 1.0, into a tree. It
// does not evaluate: package triggers/filter does.
//
// The text of the specification and the grammar that the SDKs share disagree in places. This
// parser follows the text: AND, OR and XOR have equal precedence and are read from left to
// right, and 4-1 is three. A call of an unknown function is an error of the parser, before the
// first event arrives.
package cesql
