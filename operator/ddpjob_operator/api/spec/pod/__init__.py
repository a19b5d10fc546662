"""The pod template of a group, and the merge of templates."""
