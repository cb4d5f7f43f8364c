package data

// Starts fills starts, [rows, seq], with the index in its row at which the document of each
// token begins. The token endOfText is the last one of a document; a row that begins inside a
// document has its rest at index 0. tokens is [rows, seq], too.
func Starts(starts, tokens []int32, seq int, endOfText int32) {
	start := int32(0)
	for i, id := range tokens {
		at := int32(i % seq)
		if at == 0 {
			start = 0
		}
		starts[i] = start
		if id == endOfText {
			start = at + 1
		}
	}
}
