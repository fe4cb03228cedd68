"""Who is told what is measured while training, besides the event stream: TensorBoard and W&B.

`opening.open_trackers` is the way in. Trackers are no record and never hold training up: see there.
"""
