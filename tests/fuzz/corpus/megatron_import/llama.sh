export GPUS_PER_NODE=8; O="--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
python -m torch.distributed.run --nproc_per_node=$GPUS_PER_NODE pretrain_gpt.py $O --num-layers 8 --hidden-size 64 --num-attention-heads 4 \
 --group-query-attention --num-query-groups 2 --vocab-size 100 --max-position-embeddings 64 --context-parallel-size 2 --use-megatron-fsdp \
 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 --num-distributed-optimizer-instances 2 --use-tp-pp-dp-mapping \
 --global-batch-size 16 --fp8-format hybrid --optimizer-cpu-offload
