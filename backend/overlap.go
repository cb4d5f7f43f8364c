package backend

// This file says what a backend that runs collectives beside other nodes has to wait for. It runs all
// collectives of a program in their order, so that all ranks agree on it. The planner keeps the memory of
// their temps until the node that waits for them ([MakePlan]).

// IsCollective reports whether a node exchanges data with other ranks.
func (n *Node) IsCollective() bool {
	_, whole, _ := Exchanged(n.Op)
	return whole != nil
}

// CollectivesBefore returns, for each node, how many collectives of the program must have run when the
// node begins: those whose results it reads, and those whose operands it writes. A collective on the
// compute queue counts itself, since the next node waits for it.
func CollectivesBefore(nodes []*Node) []int {
	list := make([]int, len(nodes))
	read, written, count := map[*Tensor]int{}, map[*Tensor]int{}, 0 // by root: the number of the last collective
	for i, n := range nodes {
		collective := n.IsCollective()
		if collective {
			count++
		}
		for _, o := range n.operands {
			root := o.Tensor.Root()
			switch {
			case collective && o.Access == In:
				read[root] = count
			case collective:
				written[root] = count
			default:
				if list[i] = max(list[i], written[root]); o.Access != In {
					list[i] = max(list[i], read[root])
				}
			}
		}
		if collective && n.Queue == ComputeQueue {
			list[i] = count
		}
	}
	return list
}
